document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copies]");
  if (!button) return;
  const source = document.getElementById(button.dataset.copies);
  const said = (text) => { button.textContent = text; setTimeout(() => { button.textContent = "Copy"; }, 3000); };
  const select = () => {
    getSelection().selectAllChildren(source);
    said("Selected: press Ctrl+C");
  };
  if (navigator.clipboard) navigator.clipboard.writeText(source.textContent).then(() => said("Copied"), select);
  else select();
});
